"""The job directory: who may use it, copies of it, jobs of older formats."""
