//! What a directory cache gives, and what it answers with it: pure. dir-spec "Directory cache operation", "HTTP status codes".
//!
//! Each document is compressed once, when it comes; answers are made of parts that all share.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use hoplite_wire::{
    content_coding::{Encoded, Encoding},
    tor::directory_request::{Certificates, DirectoryRequest, Prefix},
};
use http::StatusCode;

/// For how many seconds a consensus is given that is over: so long C tor's clients use one ("reasonably live").
const OVER: u64 = 24 * 3600;

/// The consensus of Tor's authorities that is given.
#[derive(Clone, Debug)]
pub struct GivenConsensus {
    /// From when it holds, in seconds since 1970.
    pub valid_after: u64,
    /// Until when it may be used.
    pub valid_until: u64,
    /// The v3 identities of who has signed it.
    pub signers: Vec<[u8; 20]>,
    /// All of it.
    pub text: Encoded,
    /// What makes it of earlier ones, by the SHA3-256 of what is signed of these.
    pub diffs: HashMap<[u8; 32], Encoded>,
}

/// A certificate of an authority.
#[derive(Clone, Debug)]
pub struct GivenCertificate {
    /// The v3 identity.
    pub authority: [u8; 20],
    /// SHA-1 of the signing key.
    pub key: [u8; 20],
    /// All of it.
    pub text: Encoded,
}

/// All that a cache gives.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    /// The consensus, once there is one.
    pub consensus: Option<Arc<GivenConsensus>>,
    /// Of the authorities that are known.
    pub certificates: Vec<GivenCertificate>,
    /// By their SHA-256.
    pub microdescriptors: HashMap<[u8; 32], Encoded>,
}

/// A request, with what stands in its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) request: DirectoryRequest,
    pub(super) encoding: Encoding,
    /// In seconds since 1970.
    pub(super) if_modified_since: Option<u64>,
    /// SHA3-256 of what is signed of consensuses that are there already.
    pub(super) diff_from: Vec<[u8; 32]>,
}

impl Asked {
    pub(super) fn is_of_consensus(&self) -> bool {
        matches!(self.request, DirectoryRequest::Consensus { .. })
    }
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// Parts that are shared with all others who are answered.
    pub(super) body: VecDeque<Bytes>,
    /// It is a difference.
    pub(super) is_diff: bool,
}

impl Answer {
    pub(super) fn without_body(status: StatusCode) -> Self {
        Self {
            status,
            body: VecDeque::new(),
            is_diff: false,
        }
    }

    /// "404 -- the requested document was not found."
    fn of<'a>(found: impl Iterator<Item = &'a Encoded>, encoding: Encoding) -> Self {
        let mut answer = Self::without_body(StatusCode::OK);
        for one in found {
            let parts = one.parts(encoding).into_iter();
            answer.body.extend(parts.filter(|part| !part.is_empty()));
        }
        if answer.body.is_empty() {
            answer.status = StatusCode::NOT_FOUND;
        }
        answer
    }

    pub(super) fn of_one(document: &Encoded, encoding: Encoding) -> Self {
        Self::of([document].into_iter(), encoding)
    }

    /// How long it is.
    pub(super) fn bytes(&self) -> usize {
        self.body.iter().map(Bytes::len).sum()
    }
}

impl Documents {
    pub(super) fn answer(&self, asked: &Asked, now: u64) -> Answer {
        match &asked.request {
            DirectoryRequest::Consensus { signers, diff_from } => {
                self.answer_consensus(asked, signers, *diff_from, now)
            }
            DirectoryRequest::Microdescriptors(digests) => {
                let found = digests
                    .iter()
                    .filter_map(|one| self.microdescriptors.get(one));
                Answer::of(found, asked.encoding)
            }
            DirectoryRequest::Certificates(which) => {
                let named = |one: &&GivenCertificate| is_named(which, &one.authority, &one.key);
                let found = self.certificates.iter().filter(named);
                Answer::of(found.map(|one| &one.text), asked.encoding)
            }
        }
    }

    fn answer_consensus(
        &self,
        asked: &Asked,
        signers: &[Prefix],
        diff_from: Option<[u8; 32]>,
        now: u64,
    ) -> Answer {
        let Some(consensus) = &self.consensus else {
            return Answer::without_body(StatusCode::SERVICE_UNAVAILABLE);
        };
        let is_over = now > consensus.valid_until.saturating_add(OVER);
        if is_over || !consensus.is_signed(signers) {
            return Answer::without_body(StatusCode::NOT_FOUND);
        }
        let since = asked.if_modified_since;
        if since.is_some_and(|since| consensus.valid_after <= since) {
            return Answer::without_body(StatusCode::NOT_MODIFIED);
        }
        let mut known = diff_from.iter().chain(&asked.diff_from);
        match known.find_map(|from| consensus.diffs.get(from)) {
            Some(diff) => Answer {
                is_diff: true,
                ..Answer::of_one(diff, asked.encoding)
            },
            None if diff_from.is_some() => Answer::without_body(StatusCode::NOT_FOUND),
            None => Answer::of_one(&consensus.text, asked.encoding),
        }
    }
}

impl GivenConsensus {
    /// "Servers will only return a consensus if more than half of the requested authorities have signed the document."
    fn is_signed(&self, asked: &[Prefix]) -> bool {
        let has_signed = |one: &&Prefix| self.signers.iter().any(|signer| one.is_of(signer));
        let signed = asked.iter().filter(has_signed).count();
        asked.is_empty() || signed > asked.len() / 2
    }
}

fn is_named(which: &Certificates, authority: &[u8; 20], key: &[u8; 20]) -> bool {
    match which {
        Certificates::All => true,
        Certificates::Of(ids) => ids.contains(authority),
        Certificates::OfKeys(keys) => keys.contains(key),
        Certificates::OfBoth(both) => both.contains(&(*authority, *key)),
    }
}
