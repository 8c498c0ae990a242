"""The texts of a request on their way to sequences, a step at a time: one module for each kind of sequence."""
