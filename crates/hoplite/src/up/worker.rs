//! The process that carries the traffic: it speaks with relays and programs, and has no right to anything but the descriptors that it was given.
//! `session` starts it, and starts it again when it ends; they speak by [`super::apart`].

use std::{
    collections::BTreeMap,
    future::pending,
    io,
    net::IpAddr,
    os::fd::{AsFd, OwnedFd},
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use hoplite_mediator::tun::{self, Counters, Device, Transparent};
use hoplite_overlay::{Direct, Overlay};
use tracing::warn;

use super::{
    apart::{self, Channel, FromWorker, ToWorker},
    carrier, numbers, probe,
    remembering::Remembering,
    status::{self, Report},
};
use crate::{
    client::overlay::Carried,
    config::client::Client,
    errors::Failure,
    listed::{self, Keeper, Kept},
    qlog,
    signals::Signals,
};

/// What it was started with.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) client: Client,
    /// How long the first probe may take.
    pub(super) wait: Duration,
    pub(super) recording: qlog::Recording,
}

/// What it carries by.
struct Road {
    carried: Carried,
    overlay: Arc<dyn Overlay>,
    names: Arc<Remembering>,
}

/// What is said of it, and to whom.
struct Worker<'a> {
    task: &'a Task,
    channel: Arc<Channel>,
    /// Addresses that programs can use.
    addresses: Vec<IpAddr>,
    counters: Arc<Counters>,
    /// What earlier interfaces counted.
    before: BTreeMap<String, u64>,
}

/// Serves until the other process is gone, or tells it to leave.
pub(super) async fn work(mut task: Task, socket: OwnedFd) -> Result<(), Failure> {
    // A terminal and a service manager signal all processes; when this one ends, the other one decides.
    let _signals = Signals::listen()?;
    let channel = Arc::new(Channel::new(socket).map_err(|error| failed(&error))?);
    let done = match prepare(&mut task, &channel).await {
        Ok(Some((road, addresses))) => {
            let worker = Worker {
                task: &task,
                channel: Arc::clone(&channel),
                addresses,
                counters: Arc::default(),
                before: BTreeMap::new(),
            };
            worker.serve(&road).await
        }
        Ok(None) => Ok(()),
        Err(failure) => Err(failure),
    };
    if let Err(failure) = done {
        // Nobody is left to hear it, if this fails.
        let said = FromWorker::Failed(failure.complaints());
        channel.send(&said, &[]).unwrap_or_default();
    }
    Ok(())
}

/// Learns who the relays are, before anything is taken; `None` when it is not wanted any more.
async fn prepare(
    task: &mut Task,
    channel: &Arc<Channel>,
) -> Result<Option<(Road, Vec<IpAddr>)>, Failure> {
    let told = channel.next().await.map_err(|error| failed(&error))?;
    let Some((
        ToWorker::Begin {
            servers,
            asks_system,
            addresses,
        },
        with,
    )) = told
    else {
        return Ok(None);
    };
    let [marks, kept] =
        <[OwnedFd; 2]>::try_from(with).map_err(|_| failed(&"two descriptors did not come"))?;
    apart::leave_marks_to(marks);
    let kept = apart::read(kept).map_err(|error| failed(&error))?;
    task.client.keeper = Some(keeper(kept, channel));
    // What an earlier block stops, these sockets may.
    let marked = Direct::for_tunnels().mark(numbers::MARK);
    listed::prepare(&mut task.client, &marked).await?;
    let names = carrier::names(&task.client, &servers, asks_system).await;
    let carried = carrier::carried(&task.client, &task.recording, &names)?;
    let overlay = carrier::split(&task.client, &carried, &names);
    let road = Road {
        carried,
        overlay,
        names,
    };
    Ok(Some((road, addresses)))
}

/// What is new of the directory goes to the other process. One that does not read loses it, and has it with what is new the next time.
fn keeper(kept: Kept, channel: &Arc<Channel>) -> Keeper {
    let channel = Mutex::new(Arc::downgrade(channel));
    let keep = move |kept: Kept| {
        let channel = channel.lock().ok().and_then(|channel| channel.upgrade());
        let sent = channel.map_or(Ok(()), |channel| {
            let kept = apart::written(&kept)?;
            channel.send(&FromWorker::Keep, &[kept.as_fd()])
        });
        if let Err(error) = sent {
            warn!(%error, "what is new of the directory is not kept");
        }
    };
    Keeper {
        kept,
        keep: Arc::new(keep),
    }
}

impl Worker<'_> {
    async fn serve(mut self, road: &Road) -> Result<(), Failure> {
        self.say(&FromWorker::Prepared)?;
        let mut probing = pin!(probe::flows(&*road.overlay, self.task.wait));
        let mut probes = true;
        let Some(mut transparent) = self.device(road).await? else {
            return Ok(());
        };
        loop {
            let mut serving = pin!(transparent.serve(pending()));
            let mut serves = true;
            let next = loop {
                tokio::select! {
                    _ = &mut serving, if serves => {
                        serves = false;
                        self.say(&FromWorker::Gone)?;
                    }
                    probed = &mut probing, if probes => {
                        probes = false;
                        probed.map_err(|error| probe::failure(&error, road.carried.missing()))?;
                        let report = Box::new(self.report(&road.carried));
                        self.say(&FromWorker::Flows(report))?;
                    }
                    told = self.channel.next() => {
                        match told.map_err(|error| failed(&error))? {
                            None => return Ok(()),
                            Some((ToWorker::Leave, _)) => {
                                road.carried.tell();
                                road.carried.leave().await;
                                return Ok(());
                            }
                            Some((ToWorker::Device { answered }, with)) => break (answered, with),
                            Some((told, _)) => self.obey(told, road)?,
                        }
                    }
                }
            };
            transparent = self.transparent(next.0, next.1, road)?;
        }
    }

    /// Waits for the first interface.
    async fn device(&mut self, road: &Road) -> Result<Option<Transparent>, Failure> {
        loop {
            match self.channel.next().await.map_err(|error| failed(&error))? {
                None | Some((ToWorker::Leave, _)) => return Ok(None),
                Some((ToWorker::Device { answered }, with)) => {
                    return self.transparent(answered, with, road).map(Some);
                }
                Some((told, _)) => self.obey(told, road)?,
            }
        }
    }

    fn obey(&self, told: ToWorker, road: &Road) -> Result<(), Failure> {
        match told {
            ToWorker::Servers(servers) => road.names.ask(&servers),
            ToWorker::Look => road.carried.look(),
            ToWorker::Report => {
                let report = Box::new(self.report(&road.carried));
                self.say(&FromWorker::Report(report))?;
            }
            ToWorker::Tell => road.carried.tell(),
            ToWorker::Begin { .. } | ToWorker::Device { .. } | ToWorker::Leave => {}
        }
        Ok(())
    }

    /// The mediator on the interface that came.
    fn transparent(
        &mut self,
        answered: Vec<IpAddr>,
        mut with: Vec<OwnedFd>,
        road: &Road,
    ) -> Result<Transparent, Failure> {
        let descriptor = with.pop().ok_or_else(|| failed(&"no interface came"))?;
        let client = &self.task.client.config;
        let mut config: tun::Config = client.transparent();
        let device =
            Device::new(descriptor, config.device.mtu, true).map_err(|error| failed(&error))?;
        // Without addresses of a family programs are told none of it.
        config.device.addresses = self.addresses.clone();
        config.dns.resolvers.extend(answered);
        let domains = client.takeover.exclude.domains.iter();
        config
            .dns
            .elsewhere
            .extend(domains.map(|domain| domain.name().clone()));
        let transparent = Transparent::new(config, Arc::clone(&road.overlay), device);
        for (name, count) in self.counters.snapshot().all() {
            *self.before.entry(name.to_owned()).or_default() += count;
        }
        self.counters = transparent.counters();
        Ok(transparent)
    }

    fn report(&self, carried: &Carried) -> Report {
        let listed = self.task.client.listed.as_ref();
        let live = self.counters.snapshot().all();
        let mut counters = self.before.clone();
        for (name, count) in &live {
            *counters.entry((*name).to_owned()).or_default() += count;
        }
        Report {
            path: carried.names(),
            connected: carried.missing().is_none(),
            channel: carried.channel().map(str::to_owned),
            split_until: listed.and_then(listed::Listed::split_until),
            flows: status::open_flows(&live),
            counters,
        }
    }

    fn say(&self, said: &FromWorker) -> Result<(), Failure> {
        self.channel
            .send(said, &[])
            .map_err(|error: io::Error| failed(&error))
    }
}

fn failed(why: &dyn std::fmt::Display) -> Failure {
    Failure::new("carrying traffic", why, "please report this")
}
