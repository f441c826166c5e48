//! Chunks in any order to each once in order, bounded; gaps, duplicates, finals.
