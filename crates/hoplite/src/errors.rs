//! How a command fails: what failed, why, what to do about it, and the exit code.
//! Every command answers with it; only `cli` prints it.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde::{Deserialize, Serialize};

/// Why a command ends without success. Displays as `hoplite: what failed: why: what to do`, one line per problem.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line or the configuration is wrong: exit code 2.
    Wrong(Vec<Complaint>),
    /// It was right, and still failed: exit code 1.
    Failed(Complaint),
}

/// One line for the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Complaint {
    /// What failed, as an activity: "listening for SOCKS".
    pub(crate) doing: String,
    /// Why.
    pub(crate) why: String,
    /// What the user can do.
    pub(crate) remedy: String,
}

impl Failure {
    /// A failure with exit code 1.
    pub(crate) fn new(
        doing: impl Into<String>,
        why: impl fmt::Display,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Failed(Complaint::new(doing, why, remedy))
    }

    /// A wrong command line, with exit code 2.
    pub(crate) fn usage(why: impl fmt::Display) -> Self {
        let remedy = "see 'hoplite --help'";
        Self::Wrong(vec![Complaint::new(
            "reading the command line",
            why,
            remedy,
        )])
    }

    /// A file that cannot be read or written.
    pub(crate) fn file(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        let remedy = match error.kind() {
            std::io::ErrorKind::NotFound => "check the path",
            std::io::ErrorKind::PermissionDenied => {
                "check who owns it, or run as a user who may use it"
            }
            std::io::ErrorKind::StorageFull => "make room on the disk",
            _ => "check the path and the disk",
        };
        Self::new(format!("{doing} {}", path.display()), error, remedy)
    }

    /// A configuration file that cannot be read: the user named it, so it counts as wrong usage.
    pub(crate) fn no_config(path: &Path, error: &std::io::Error) -> Self {
        let doing = format!(
            "reading the configuration {}",
            PathBuf::from(path).display()
        );
        let remedy = "check the path given with --config";
        Self::Wrong(vec![Complaint::new(doing, error, remedy)])
    }

    /// Its lines, for another process to say.
    pub(crate) fn complaints(&self) -> Vec<Complaint> {
        match self {
            Self::Wrong(complaints) => complaints.clone(),
            Self::Failed(complaint) => vec![complaint.clone()],
        }
    }

    /// The exit code of the CLI contract.
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Self::Wrong(_) => ExitCode::from(2),
            Self::Failed(_) => ExitCode::FAILURE,
        }
    }
}

impl Complaint {
    /// One line for the user.
    pub(crate) fn new(
        doing: impl Into<String>,
        why: impl fmt::Display,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            doing: doing.into(),
            why: why.to_string(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hoplite: {}: {}: {}", self.doing, self.why, self.remedy)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(complaint) => complaint.fmt(f),
            Self::Wrong(complaints) => {
                for (i, complaint) in complaints.iter().enumerate() {
                    f.write_str(if i == 0 { "" } else { "\n" })?;
                    complaint.fmt(f)?;
                }
                Ok(())
            }
        }
    }
}

impl From<Complaint> for Failure {
    fn from(complaint: Complaint) -> Self {
        Self::Failed(complaint)
    }
}

impl From<Vec<Complaint>> for Failure {
    fn from(complaints: Vec<Complaint>) -> Self {
        Self::Wrong(complaints)
    }
}
