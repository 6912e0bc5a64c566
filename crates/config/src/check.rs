//! What is wrong with a configuration whose syntax is right.

use std::path::PathBuf;

/// A value that cannot be used, by its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct ConfigError {
    /// The key, as in the file: `auth.token`.
    pub key: &'static str,
    /// What is wrong, and what was expected.
    pub problem: String,
    /// Set when a file that the configuration names could not be read, or its content not used.
    pub file: Option<PathBuf>,
}

impl ConfigError {
    /// Of a value that stands in the configuration itself.
    pub fn new(key: &'static str, problem: impl Into<String>) -> Self {
        Self {
            key,
            problem: problem.into(),
            file: None,
        }
    }
}

/// All that is wrong: of keys, each with what is expected of it and whether it is so, those of which it is not.
pub fn wrongs<const N: usize>(
    all: [(&'static str, &'static str, bool); N],
) -> impl Iterator<Item = ConfigError> {
    let wrong = all.into_iter().filter(|(.., is_right)| !is_right);
    wrong.map(|(key, expected, _)| ConfigError::new(key, expected))
}

/// Checks numbers and times of which none may be zero: each key, and whether it is.
///
/// # Errors
/// The first that is.
pub fn above_zero(zeros: &[(&'static str, bool)]) -> Result<(), ConfigError> {
    match zeros.iter().find(|(_, is_zero)| *is_zero) {
        Some((key, _)) => Err(ConfigError::new(key, "expected a number above 0")),
        None => Ok(()),
    }
}
