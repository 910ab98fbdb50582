"""One module for each group of figures; `measure(bench)` runs it and adds to `bench.report`."""
