"""Parts that the pages share: cells, paging."""
