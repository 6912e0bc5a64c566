//! Records of every packet, for whoever studies QUIC: qlog files in the directory that `QLOGDIR` names, as other QUIC stacks have it.
//! `client` and `relay` start it; without the variable nothing is hooked into any connection.

use std::{path::PathBuf, sync::Arc};

use hoplite_crypto::{Qlog, observe::Watch};
use tracing::warn;

use crate::errors::Failure;

/// The variable.
const VARIABLE: &str = "QLOGDIR";

/// Writes as long as it lives, and finishes its files when it is dropped.
#[derive(Debug)]
pub(crate) struct Recording(Option<Qlog>);

impl Recording {
    /// Records if the environment asks for it, and warns that it does.
    pub(crate) fn from_environment() -> Result<Self, Failure> {
        let directory = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
        let Some(directory) = directory.map(PathBuf::from) else {
            return Ok(Self(None));
        };
        let shown = directory.display();
        let qlog = Qlog::start(&directory).map_err(|error| {
            let doing = format!("recording packets into {shown}");
            Failure::new(doing, error, "correct QLOGDIR, or unset it")
        })?;
        warn!(
            "QLOGDIR is set: time, size and frames of every packet are written into {shown}: \
             whoever reads that can tell what this process carried and when"
        );
        Ok(Self(Some(qlog)))
    }

    /// What connections are shown to.
    pub(crate) fn watch(&self) -> Option<Arc<dyn Watch>> {
        self.0.clone().map(|qlog| Arc::new(qlog) as _)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(qlog) = &self.0 {
            qlog.flush();
        }
    }
}
