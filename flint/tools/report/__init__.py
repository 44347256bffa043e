"""Results for people and for other tools: summary, explanation, graphs, timelines."""
