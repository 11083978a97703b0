"""Does a node compute and send as the others do? Small kernels and messages, compared over the job."""
