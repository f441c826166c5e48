//! Client protocols as folds over ordered chunks: native SSE.
