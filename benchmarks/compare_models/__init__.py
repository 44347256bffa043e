"""HuggingFace models and a ResNet as Flint captures them beside what H100 and MI300X took: docs/measured.md."""
