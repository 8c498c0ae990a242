"""One engine a module: opened with a model, a number of threads and of streams, it runs batches."""
