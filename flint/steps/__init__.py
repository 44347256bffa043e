"""What a user passes in: steps, pipelines, pools, model files and their options."""
