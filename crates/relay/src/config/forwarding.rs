//! `[forwarding]`: whether clients' QUIC packets may pass the connection by.

use serde::Deserialize;

use super::ConfigError;

/// How many ids one flow may have at least and at most.
const IDS: std::ops::RangeInclusive<usize> = 2..=256;

/// Forwarded mode (draft-ietf-masque-quic-proxy).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Forwarding {
    /// Forward the packets of clients that ask for it.
    pub enabled: bool,
    /// Accept the transform that leaves packets as they are, by which whoever sees both sides of the relay can match them.
    pub identity: bool,
    /// How many connection ids a flow may have registered at a time, 2 to 256. One whose target is a relay has those of every flow
    /// inside that relay's.
    pub ids_per_flow: usize,
    /// How many all flows of all clients may have registered; what finds no place stays tunnelled.
    pub ids: usize,
    /// Whether the kernel forwards what is not transformed, by itself.
    pub kernel: KernelMode,
    /// The interfaces where it does; none: those with a default route.
    pub interfaces: Vec<String>,
}

/// How the program that forwards in the kernel is attached to an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KernelMode {
    /// There is none.
    #[default]
    Off,
    /// In the driver where it takes one, else before the rest of the kernel's network.
    Auto,
    /// In the driver or not at all.
    Driver,
    /// Before the rest of the kernel's network.
    Generic,
}

impl KernelMode {
    /// As it stands in a file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Driver => "driver",
            Self::Generic => "generic",
        }
    }
}

impl Default for Forwarding {
    fn default() -> Self {
        Self {
            enabled: true,
            identity: false,
            ids_per_flow: 64,
            ids: 262_144,
            kernel: KernelMode::Off,
            interfaces: Vec::new(),
        }
    }
}

impl Forwarding {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.ids == 0 {
            return Err(ConfigError::new(
                "forwarding.ids",
                "expected a number above 0",
            ));
        }
        if self.kernel != KernelMode::Off && !cfg!(feature = "kernel-forwarding") {
            let problem = "this program cannot: it takes one that is built with `--features kernel-forwarding`";
            return Err(ConfigError::new("forwarding.kernel", problem));
        }
        if IDS.contains(&self.ids_per_flow) {
            Ok(())
        } else {
            let problem = format!("expected 2 to 256, found {}", self.ids_per_flow);
            Err(ConfigError::new("forwarding.ids_per_flow", problem))
        }
    }
}
