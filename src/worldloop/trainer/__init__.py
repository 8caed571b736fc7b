"""Training and evaluation of worlds: walks, datasets, recipes, the two training loops and the report card."""
