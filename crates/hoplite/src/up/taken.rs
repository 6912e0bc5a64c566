//! What has been taken of the machine, and how it is given back: all of it, or all but the block.
//! `daemon` and `down` use it over the real [`Machine`], the tests over one that fails where they say.

use super::plan::{Plan, Step, Way};
use crate::errors::Complaint;

/// What steps are done to. Both must be idempotent.
pub(crate) trait Machine {
    /// Takes a step.
    async fn apply(&mut self, step: &Step) -> Result<(), Complaint>;
    /// Undoes it; what is not there is undone already.
    async fn undo(&mut self, step: &Step) -> Result<(), Complaint>;
}

/// The steps that have been taken.
#[derive(Debug)]
pub(crate) struct Taken<M> {
    machine: M,
    done: Vec<Step>,
}

/// How much is left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// Nothing.
    Nothing,
    /// What blocks.
    Block,
}

impl<M: Machine> Taken<M> {
    /// Takes every step of the plan. If one fails, the ones before are undone, but not the block if it stood `before`.
    pub(crate) async fn take(machine: M, plan: &Plan, before: bool) -> Result<Self, Complaint> {
        let done = Vec::with_capacity(plan.steps.len());
        let mut taken = Self { machine, done };
        for step in &plan.steps {
            // A step that fails may have done a part.
            taken.done.push(step.clone());
            if let Err(failure) = taken.machine.apply(step).await {
                let leave = if before { Leave::Block } else { Leave::Nothing };
                taken.give_back(leave).await;
                return Err(failure);
            }
        }
        Ok(taken)
    }

    /// Takes every step that can be taken, and keeps what it has; says what failed.
    pub(crate) async fn take_all_it_can(machine: M, plan: &Plan) -> (Self, Vec<Complaint>) {
        let done = plan.steps.clone();
        let mut taken = Self { machine, done };
        let complaints = taken.take_again(|_| true).await;
        (taken, complaints)
    }

    /// Takes those again of the steps taken; one that fails does not keep the others from it.
    async fn take_again(&mut self, which: impl Fn(&Step) -> bool) -> Vec<Complaint> {
        let mut complaints = Vec::new();
        for step in self.done.iter().filter(|step| which(step)) {
            complaints.extend(self.machine.apply(step).await.err());
        }
        complaints
    }

    /// Makes again what blocks, after somebody has undone it; says what failed.
    pub(crate) async fn block_again(&mut self) -> Vec<Complaint> {
        self.take_again(Step::blocks).await
    }

    /// Undoes what was taken, the last first; says what could not be undone.
    pub(crate) async fn give_back(&mut self, leave: Leave) -> Vec<Complaint> {
        let mut complaints = Vec::new();
        let mut left = Vec::new();
        while let Some(step) = self.done.pop() {
            match leave == Leave::Block && step.blocks() {
                true => left.push(step),
                false => complaints.extend(self.machine.undo(&step).await.err()),
            }
        }
        left.reverse();
        self.done = left;
        complaints
    }

    /// Takes the steps again that somebody may have undone behind our back; the interface itself only if it is `gone`.
    /// One that fails does not keep the others from it.
    pub(crate) async fn renew(&mut self, gone: bool) -> Result<(), Complaint> {
        let mut first = Ok(());
        for step in &self.done {
            let is_due = match step {
                Step::Device(..) | Step::Names(Way::Resolved, _) => gone,
                Step::Names(..) => false,
                _ => true,
            };
            if is_due {
                first = first.and(self.machine.apply(step).await);
            }
        }
        first
    }

    /// Takes over the names again.
    pub(crate) async fn renew_names(&mut self) -> Result<(), Complaint> {
        for step in &self.done {
            if matches!(step, Step::Names(..)) {
                self.machine.apply(step).await?;
            }
        }
        Ok(())
    }

    /// The steps, in order.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.done
    }

    /// Leaves everything as it is.
    pub(crate) fn leave(self) -> M {
        self.machine
    }

    /// What it is done to.
    pub(crate) fn machine(&self) -> &M {
        &self.machine
    }
}

/// Undoes whatever anybody has left.
pub(crate) async fn clear(machine: impl Machine, remains: Vec<Step>) -> Vec<Complaint> {
    let done = remains;
    Taken { machine, done }.give_back(Leave::Nothing).await
}

#[cfg(test)]
mod tests;
