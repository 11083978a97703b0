"""The probe: do a job's nodes compute and communicate as well as each other? Small kernels and messages, compared."""
