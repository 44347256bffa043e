"""`flint calibrate`: constants of a cluster from measurements, with the error that they leave."""
