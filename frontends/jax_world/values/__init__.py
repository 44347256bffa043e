"""What is known of arrays without data, and what the program is told when it reads one."""
