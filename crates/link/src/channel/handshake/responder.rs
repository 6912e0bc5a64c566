//! The responder's part: it says who it is before it knows anything of the initiator, and then checks what that one says.

use hoplite_crypto::onion::identity::{
    Initiator, PeerId, Proof, check_authentication, verify_initiator,
};
use hoplite_wire::cell::{
    Cell, Command,
    handshake::{AuthChallenge, AuthType, Authenticate, Certs},
};
use ring::rand::{SecureRandom, SystemRandom};

use super::{Around, Handshake, Refused, Side};

/// What may come next. NETINFO may always: who has not proven anything by then is a client.
pub(super) enum Step {
    /// VERSIONS.
    Versions,
    /// CERTS.
    Certs,
    /// AUTHENTICATE.
    Authenticate(Box<Initiator>),
    /// NETINFO alone.
    Netinfo,
}

impl Handshake {
    pub(super) fn responder_versions(&mut self, now: u64) -> Result<(), Refused> {
        self.send_versions();
        let identity = self.us.identity.clone();
        let identity = identity.ok_or(Refused::Own("identity"))?;
        let certs = identity.responder_certs(&self.binding.certificate, now);
        let certs = certs.map_err(|_| Refused::Own("certificates"))?;
        let certs = certs.iter().map(|(kind, cert)| (*kind, cert.as_slice()));
        let certs = Certs(certs.collect());
        self.send(Command::CERTS, |out| certs.write(out))?;
        self.challenge()?;
        self.side = Side::Responder(Step::Certs);
        self.send_netinfo(now)
    }

    fn challenge(&mut self) -> Result<(), Refused> {
        let mut challenge = [0; 32];
        let filled = SystemRandom::new().fill(&mut challenge);
        filled.map_err(|_| Refused::Own("random numbers"))?;
        let challenge = AuthChallenge {
            challenge,
            methods: vec![AuthType::ED25519_SHA256_RFC5705],
        };
        self.send(Command::AUTH_CHALLENGE, |out| challenge.write(out))?;
        // What follows is not in the log that the initiator signs.
        self.challenged = Some(self.sent.so_far());
        Ok(())
    }

    pub(super) fn responder_greeting(
        &mut self,
        cell: &Cell,
        around: Around<'_>,
    ) -> Result<(), Refused> {
        let Side::Responder(step) = &self.side else {
            return Err(Refused::Unexpected(cell.command));
        };
        let next = match (step, cell.command) {
            (Step::Certs, Command::CERTS) => {
                let certs = Certs::parse(&cell.body)?;
                let initiator = verify_initiator(&certs, around.now).map_err(Refused::Identity)?;
                self.is_not_us(&initiator.peer)?;
                Step::Authenticate(Box::new(initiator))
            }
            (Step::Authenticate(initiator), Command::AUTHENTICATE) => {
                self.check(&cell.body, initiator, around)?;
                self.peer = Some(initiator.peer);
                Step::Netinfo
            }
            (_, command) => return Err(Refused::Unexpected(command)),
        };
        self.side = Side::Responder(next);
        Ok(())
    }

    fn check(&self, body: &[u8], initiator: &Initiator, around: Around<'_>) -> Result<(), Refused> {
        let authenticate = Authenticate::parse(body)?;
        if authenticate.method != AuthType::ED25519_SHA256_RFC5705 {
            return Err(Refused::Unexpected(Command::AUTHENTICATE));
        }
        let identity = self.us.identity.as_ref().ok_or(Refused::Own("identity"))?;
        let proof = Proof {
            responder_log: self.challenged.ok_or(Refused::Own("log"))?,
            initiator_log: self.introduced,
            certificate: self.binding.certificate,
            exporter: around.export(&initiator.peer)?,
        };
        let authentication = authenticate.authentication;
        check_authentication(authentication, initiator, &identity.peer(), &proof)
            .map_err(Refused::Identity)
    }

    /// A relay that dials itself would carry a circuit in a ring.
    pub(super) fn is_not_us(&self, peer: &PeerId) -> Result<(), Refused> {
        let us = self.us.identity.as_ref().map(|identity| identity.peer());
        match us {
            Some(us) if us.ed25519 == peer.ed25519 => Err(Refused::Ourselves),
            _ => Ok(()),
        }
    }
}
