"""Estimates that rest on measured times: replay of profiles, changes of parts, and what is predicted from them."""
