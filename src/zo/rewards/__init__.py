"""Functions that rate generated texts: how they are called, and the processes that call them."""
