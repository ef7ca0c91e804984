"""Messages over MPI: the duplicates of a communicator, calls under way and their progress, calls compared, aborts."""
