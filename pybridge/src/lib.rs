//! The extension module: names exported, nothing else.
