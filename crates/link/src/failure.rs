//! What a failure on the way to a relay means to the user: the entry, the path, or an identity that is not the expected one.

use hoplite_overlay::{Error, ErrorKind, Reason};
use quinn::ConnectionError;

/// Which hop of which relay failed.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) hop: usize,
    pub(crate) relay: String,
}

/// Whether our TLS side ended the handshake because the relay is not the expected one (alerts of RFC 8446 §6.2):
/// bad_certificate to access_denied, decrypt_error (it shows a certificate whose key it does not have),
/// bad_certificate_status_response.
fn is_identity_alert(code: u64) -> bool {
    matches!(code.checked_sub(0x100), Some(42..=49 | 51 | 113))
}

impl Place {
    /// A failure to reach the relay at all.
    pub(crate) fn unreachable(&self) -> Error {
        let kind = if self.hop == 0 {
            ErrorKind::EntryUnreachable
        } else {
            ErrorKind::PathFailed
        };
        Error::new(kind, format!("connecting to relay {}", self.relay))
    }

    /// What the overlay below said when it was asked for a flow to the relay.
    pub(crate) fn below(&self, error: Error) -> Error {
        let telling = matches!(error.kind(), ErrorKind::EntryUnreachable | ErrorKind::Bug)
            || error.reason() == Some(Reason::Authentication);
        if telling && self.hop > 0 {
            return error;
        }
        let reason = error.reason();
        let failure = self.unreachable().caused_by(error);
        match reason {
            Some(reason) => failure.because(reason),
            None => failure,
        }
    }

    /// A QUIC connection that failed or ended.
    pub(crate) fn quic(&self, error: ConnectionError) -> Error {
        let failure = self.unreachable();
        let failure = match &error {
            ConnectionError::TransportError(e) if is_identity_alert(e.code.into()) => {
                failure.because(Reason::Identity)
            }
            _ => failure,
        };
        failure.caused_by(error)
    }

    /// A TLS handshake that failed.
    pub(crate) fn tls(&self, error: std::io::Error) -> Error {
        let failure = self.unreachable();
        if hoplite_crypto::is_identity_mismatch(&error) {
            return failure.because(Reason::Identity).caused_by(error);
        }
        failure.caused_by(error)
    }
}
