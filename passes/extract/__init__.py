"""One walk from a partitioned StableHLO module to a Program."""

from flint.passes.extract.walk import extract as extract
from flint.passes.extract.walk import extract_with_results as extract_with_results
from flint.passes.extract.walk import extract_with_splits as extract_with_splits
