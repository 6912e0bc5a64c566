//! The workloads of an attempt: group after group, those of a group together, each at its time. Between two words of theirs, one looks whether all else still works.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    time::{Duration, Instant},
};

use super::{
    failed,
    work::{Event, Site, Work},
};
use crate::{
    netns::Lab,
    topology::Addresses,
    trial::{Outcome, Trial},
    workload::{Plan, Transfer},
};

/// How often one looks after the others while no workload says anything.
const LOOK: Duration = Duration::from_millis(100);

/// Words of workloads that may wait to be heard; then those who speak wait.
const WORDS: usize = 4096;

/// What the workloads of an attempt did.
#[derive(Debug, Default)]
pub(super) struct Carried<'a> {
    /// Every transfer, in the order of their ends.
    pub(super) transfers: Vec<Transfer>,
    /// Every workload, in the order of their starts.
    pub(super) works: Vec<Work<'a>>,
}

/// A group under way.
struct Group<'a, 'c> {
    site: Site<'a>,
    carried: &'c mut Carried<'a>,
    /// Those that were not started yet, the next one last.
    pending: Vec<&'a Plan>,
    /// How many were started and still speak.
    open: usize,
    began: Instant,
    say: SyncSender<Event>,
    hear: Receiver<Event>,
}

/// Runs all groups; `check` is asked again and again whether to go on.
///
/// # Errors
/// The first thing that went wrong; what was carried until then stays in `carried`.
pub(super) fn run<'a>(
    site: Site<'a>,
    carried: &mut Carried<'a>,
    mut check: impl FnMut(&str) -> Result<(), Outcome>,
) -> Result<(), Outcome> {
    for plans in grouped(site.trial) {
        let doing = format!("running the workloads {}", names(&plans));
        check(&doing)?;
        Group::new(site, carried, plans).run(&mut || check(&doing))?;
    }
    Ok(())
}

/// By group, the groups in the order of their first mention, the last to start first.
fn grouped(trial: &Trial) -> Vec<Vec<&Plan>> {
    let mut groups: Vec<Vec<&Plan>> = Vec::new();
    for plan in &trial.workloads {
        let same = |group: &&mut Vec<&Plan>| group.iter().any(|other| other.group == plan.group);
        match groups.iter_mut().find(same) {
            Some(group) => group.push(plan),
            None => groups.push(vec![plan]),
        }
    }
    for group in &mut groups {
        group.sort_by_key(|plan| plan.at);
        group.reverse();
    }
    groups
}

fn names(plans: &[&Plan]) -> String {
    let names: Vec<&str> = plans.iter().rev().map(|plan| plan.name.as_str()).collect();
    names.join(", ")
}

impl<'a, 'c> Group<'a, 'c> {
    fn new(site: Site<'a>, carried: &'c mut Carried<'a>, pending: Vec<&'a Plan>) -> Self {
        let (say, hear) = sync_channel(WORDS);
        Self {
            site,
            carried,
            pending,
            open: 0,
            began: Instant::now(),
            say,
            hear,
        }
    }

    fn run(&mut self, check: &mut dyn FnMut() -> Result<(), Outcome>) -> Result<(), Outcome> {
        let mut checked = Instant::now();
        while self.open > 0 || !self.pending.is_empty() {
            self.start_due()?;
            match self.hear.recv_timeout(self.pause()) {
                Ok(event) => self.handle(event)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if checked.elapsed() >= LOOK {
                check()?;
                checked = Instant::now();
            }
        }
        Ok(())
    }

    fn start_due(&mut self) -> Result<(), Outcome> {
        let begun = self.began.elapsed();
        while let Some(plan) = self.pending.pop_if(|plan| plan.at <= begun) {
            let number = self.carried.works.len();
            let work = Work::start(self.site, plan, number, self.say.clone())?;
            self.carried.works.push(work);
            self.open += 1;
        }
        Ok(())
    }

    /// Until the next one is due or it is time to look after the others.
    fn pause(&self) -> Duration {
        let next = self.pending.last();
        let next = next.map(|plan| plan.at.saturating_sub(self.began.elapsed()));
        next.unwrap_or(LOOK).min(LOOK)
    }

    fn handle(&mut self, event: Event) -> Result<(), Outcome> {
        let (Event::Transfer(number, _) | Event::Nonsense(number, _) | Event::Silence(number)) =
            &event;
        let Some(work) = self.carried.works.get_mut(*number) else {
            return Ok(());
        };
        match event {
            Event::Transfer(_, transfer) => {
                work.seen();
                check_cover(self.site, work.plan, &transfer)?;
                self.carried.transfers.push(*transfer);
                Ok(())
            }
            Event::Nonsense(_, why) => {
                Err(work.failed(format!("it said what is no transfer: {why}")))
            }
            Event::Silence(_) => {
                self.open -= 1;
                work.ended()
            }
        }
    }
}

/// A subject that promises to hide the client must not let the server see it.
fn check_cover(site: Site<'_>, plan: &Plan, transfer: &Transfer) -> Result<(), Outcome> {
    let own = addresses(site.lab, &plan.from);
    let seen = transfer.seen_as.map(|seen| seen.to_canonical());
    let promised = site.trial.subject.hides_client && !plan.direct;
    match (seen, own) {
        (Some(seen), Some(own)) if promised && is_of(seen, own) => {
            let why = format!(
                "the server saw the address of {} itself, {seen}: the traffic went beside the subject",
                plan.from
            );
            Err(failed(
                format!("running the workload {}", plan.name),
                why,
                "",
            ))
        }
        _ => Ok(()),
    }
}

fn is_of(seen: std::net::IpAddr, own: Addresses) -> bool {
    seen == own.v4 || seen == own.v6
}

fn addresses(lab: &Lab, host: &str) -> Option<Addresses> {
    lab.host(host).map(|host| host.addresses)
}
