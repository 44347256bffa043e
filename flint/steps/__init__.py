"""What a user hands over: steps, pipelines, pools, model files and their options."""
