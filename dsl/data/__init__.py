"""Reading: files of every format become one neutral index; images become views and batches."""
