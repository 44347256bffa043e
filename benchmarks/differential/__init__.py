"""Random small programs, partitioned by Flint and by XLA: are their collectives the same?"""
