//! How a command fails: what failed, why, what to do. Every room of the lab answers with it; only `main` prints it.

use std::{fmt, io, process::ExitCode};

/// Why a command ends without success; displays one line per problem.
#[derive(Debug)]
pub enum Failure {
    /// The command line or a file is wrong: exit code 2.
    Wrong(Vec<Complaint>),
    /// It was right, and still failed: exit code 1.
    Failed(Complaint),
}

/// One line for the user: `what failed: why: what to do`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// What failed, as an activity.
    pub doing: String,
    /// Why.
    pub why: String,
    /// What the user can do.
    pub remedy: String,
}

impl Complaint {
    /// A complaint.
    pub fn new(
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

impl Failure {
    /// A failure with exit code 1.
    pub fn new(
        doing: impl Into<String>,
        why: impl fmt::Display,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Failed(Complaint::new(doing, why, remedy))
    }

    /// What the process ends with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Wrong(_) => ExitCode::from(2),
            Self::Failed(_) => ExitCode::from(1),
        }
    }
}

/// What came of writing to stdout. A reader that has seen enough closes the pipe: that is no failure.
pub(crate) fn printed(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(
            "writing to stdout",
            error,
            "check where it goes",
        )),
        _ => Ok(()),
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.doing, self.why, self.remedy)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = match self {
            Self::Wrong(complaints) => complaints.as_slice(),
            Self::Failed(complaint) => std::slice::from_ref(complaint),
        };
        for (i, line) in lines.iter().enumerate() {
            let end = if i == 0 { "" } else { "\n" };
            write!(f, "{end}hoplite-lab: {line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}
