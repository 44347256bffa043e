"""Clusters as InfraGraph documents (Keysight's `infragraph`, which belongs to Chakra's working group)."""
