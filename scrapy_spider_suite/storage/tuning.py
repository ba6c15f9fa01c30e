"""How the database is set up: one cache and one bound on write buffers for all its families."""

from __future__ import annotations

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    WriteBufferManager,
)

_LEAST = 16 << 20
"""Bytes of memory below which the database does not work well."""


class Tuning:
    """Options of a database whose write buffers and block cache have *memory* bytes together."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self._cache = Cache(memory * 2 // 5)
        self._buffers = WriteBufferManager(memory * 3 // 5, False)

    def resize(self, memory: int) -> None:
        """Let them have *memory* bytes (what a full table needs stays as it is)."""
        memory = max(_LEAST, memory)
        if memory != self.memory:
            self.memory = memory
            self._cache.set_capacity(memory * 2 // 5)
            self._buffers.set_buffer_size(memory * 3 // 5)

    def options(self, *, root: bool = False) -> Options:
        """Those of a family; of the database itself, *root*."""
        options = Options(raw_mode=True)
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        # Filters and indexes count as cache, and in pieces: whole ones, of a megabyte each, push
        # one another out, and then every look-up reads one (60 us instead of 5).
        table.set_bloom_filter(10, False)
        table.set_cache_index_and_filter_blocks(True)
        table.set_index_type(BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_pin_top_level_index_and_filter(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_size(self.memory // 8)
        options.set_compression_type(DBCompressionType.lz4())
        if root:
            options.create_if_missing(True)
            options.create_missing_column_families(True)
            options.set_write_buffer_manager(self._buffers)
            options.set_max_total_wal_size(self.memory)
            options.set_keep_log_file_num(2)
            options.set_max_log_file_size(10 << 20)
            options.set_max_open_files(256)
        return options
