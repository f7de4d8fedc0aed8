"""What people look at: drawn boxes, plots and pages made from the results."""
