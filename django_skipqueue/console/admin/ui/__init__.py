"""Parts that the pages share: cells, paging, addresses, time limits."""
