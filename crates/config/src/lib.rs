//! How configuration files are read: values that stand in them as texts and numbers, checks that name a key, where
//! in the file that key stands, and secret keys in files of their own.
//! Each room owns the structs that its keys fill, with serde's `Deserialize`, a `Default` and a check; the binary joins them.

mod check;
mod document;
mod secret;
mod value;

pub use check::{ConfigError, above_zero, wrongs};
pub use document::{Document, Entry, Item, Malformed, Node, Table, listed, meant};
pub use secret::{hex, hex_key, secret_text};
pub use value::{list, or_third, parsed, parsed_option, seconds};
