"""Rank 1 fails with an exception, which torch's `record` writes to TORCHELASTIC_ERROR_FILE; rank 0 waits for rank 1."""

import os
import time

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("no data for rank 1")
    time.sleep(600)


main()
