"""What now: changes of a step that are estimated before they are proposed."""
