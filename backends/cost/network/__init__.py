"""Where the members of a group lie on a cluster's network, and what they share."""
