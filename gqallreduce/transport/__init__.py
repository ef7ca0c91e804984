"""Messages over MPI: the duplicates of a communicator, calls compared, waits, aborts, the carrier of bytes."""
