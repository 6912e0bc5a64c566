//! The initiator's part: it checks who the responder is, and says who it is itself if it is a relay.

use hoplite_crypto::onion::identity::{
    EXPORTER_LABEL, PeerId, Proof, RelayIdentity, verify_responder,
};
use hoplite_wire::cell::{
    Cell, Command,
    handshake::{AuthChallenge, AuthType, Authenticate, Certs},
};

use super::{Around, Handshake, Refused, Side};

/// What is to come next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// VERSIONS.
    Versions { expected: Option<[u8; 32]> },
    /// CERTS.
    Certs { expected: Option<[u8; 32]> },
    /// AUTH_CHALLENGE.
    Challenge,
    /// NETINFO; ours is sent.
    Netinfo,
}

impl Step {
    pub(super) const fn is_complete(self) -> bool {
        matches!(self, Self::Netinfo)
    }
}

impl Handshake {
    pub(super) fn initiator_versions(&mut self) {
        if let Side::Initiator(step) = &mut self.side
            && let Step::Versions { expected } = *step
        {
            *step = Step::Certs { expected };
        }
    }

    pub(super) fn initiator_greeting(
        &mut self,
        cell: &Cell,
        around: Around<'_>,
    ) -> Result<(), Refused> {
        let Side::Initiator(step) = self.side else {
            return Err(Refused::Unexpected(cell.command));
        };
        let next = match (step, cell.command) {
            (Step::Certs { expected }, Command::CERTS) => {
                self.responder_certs(&cell.body, expected, around.now)?;
                Step::Challenge
            }
            (Step::Challenge, Command::AUTH_CHALLENGE) => {
                self.answer(&cell.body, around)?;
                Step::Netinfo
            }
            (_, command) => return Err(Refused::Unexpected(command)),
        };
        self.side = Side::Initiator(next);
        Ok(())
    }

    fn responder_certs(
        &mut self,
        body: &[u8],
        expected: Option<[u8; 32]>,
        now: u64,
    ) -> Result<(), Refused> {
        let certs = Certs::parse(body)?;
        let certificate = &self.binding.certificate;
        let peer = verify_responder(&certs, certificate, expected.as_ref(), now)
            .map_err(Refused::Identity)?;
        self.is_not_us(&peer)?;
        self.peer = Some(peer);
        Ok(())
    }

    /// A client sends NETINFO alone, a relay proves itself first.
    fn answer(&mut self, body: &[u8], around: Around<'_>) -> Result<(), Refused> {
        let challenge = AuthChallenge::parse(body)?;
        if let Some(identity) = self.us.identity.clone() {
            if !challenge
                .methods
                .contains(&AuthType::ED25519_SHA256_RFC5705)
            {
                return Err(Refused::NoMethod);
            }
            self.authenticate(&identity, around)?;
        }
        self.send_netinfo(around.now)
    }

    fn authenticate(
        &mut self,
        identity: &RelayIdentity,
        around: Around<'_>,
    ) -> Result<(), Refused> {
        let responder = self
            .peer
            .ok_or(Refused::Unexpected(Command::AUTH_CHALLENGE))?;
        let certs = identity.initiator_certs(around.now);
        let certs = certs.map_err(|_| Refused::Own("certificates"))?;
        let certs = certs.iter().map(|(kind, cert)| (*kind, cert.as_slice()));
        let certs = Certs(certs.collect());
        self.send(Command::CERTS, |out| certs.write(out))?;
        let proof = Proof {
            responder_log: self.received.so_far(),
            initiator_log: self.sent.so_far(),
            certificate: self.binding.certificate,
            exporter: around.export(&identity.peer())?,
        };
        let authentication = identity.authenticate(&responder, &proof);
        let authentication = authentication.map_err(|_| Refused::Own("proof"))?;
        let authenticate = Authenticate {
            method: AuthType::ED25519_SHA256_RFC5705,
            authentication: &authentication,
        };
        self.send(Command::AUTHENTICATE, |out| authenticate.write(out))
    }
}

impl Around<'_> {
    pub(super) fn export(self, initiator: &PeerId) -> Result<[u8; 32], Refused> {
        let context = initiator.exporter_context();
        (self.exporter)(EXPORTER_LABEL, &context).ok_or(Refused::Own("exporter"))
    }
}
