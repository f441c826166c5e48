//! Checks whether handlers were called in the order of the queues, using the marks that they
//! recorded.

/// The result for one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct OrderVerdict {
    /// Number of handlers that began while an earlier task of the same agent had not ended. This
    /// includes overtaking and overlapping.
    pub(super) out_of_order: u64,
    /// Number of handlers that began although the same task had begun before.
    pub(super) repeated: u64,
    /// Number of tasks whose handler has not ended.
    pub(super) missing: u64,
}

/// Evaluates marks in the order in which they were recorded: 2n when task n began, 2n + 1 when it
/// had ended, and n = agent * tasks + seq. Returns `None` if a mark belongs to no task.
pub(super) fn judge(agents: u32, tasks: u32, marks: &[u64]) -> Option<OrderVerdict> {
    let (agents, tasks) = (agents as usize, tasks as usize);
    let mut begun = vec![false; agents * tasks];
    let mut ended = vec![false; agents * tasks];
    // For each agent, the first task that has not ended.
    let mut head = vec![0; agents];
    let mut verdict = OrderVerdict::default();
    for mark in marks {
        let n = usize::try_from(mark / 2).ok().filter(|n| *n < agents * tasks)?;
        let (agent, seq) = (n / tasks, n % tasks);
        if mark % 2 == 0 {
            verdict.out_of_order += u64::from(seq > head[agent]);
            verdict.repeated += u64::from(begun[n]);
            begun[n] = true;
        } else {
            ended[n] = true;
            while head[agent] < tasks && ended[agent * tasks + head[agent]] {
                head[agent] += 1;
            }
        }
    }
    verdict.missing = ended.iter().filter(|ended| !**ended).count() as u64;
    Some(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the script, `b12` means that task 2 of agent 1 begins, and `e12` that it ends. There are
    /// two agents with three tasks each.
    fn judged(script: &str) -> Option<OrderVerdict> {
        let digit = |text: &str, at: usize| text.as_bytes()[at] as u64 - u64::from(b'0');
        let marks = script.split_whitespace().map(|word| {
            let n = digit(word, 1) * 3 + digit(word, 2);
            2 * n + u64::from(word.starts_with('e'))
        });
        judge(2, 3, &marks.collect::<Vec<_>>())
    }

    fn verdict(out_of_order: u64, repeated: u64, missing: u64) -> Option<OrderVerdict> {
        Some(OrderVerdict { out_of_order, repeated, missing })
    }

    #[test]
    fn agents_side_by_side_are_in_order() {
        let script = "b00 b10 e10 e00 b11 b01 e01 e11 b12 b02 e12 e02";
        assert_eq!(judged(script), verdict(0, 0, 0));
    }

    #[test]
    fn overtaking_and_overlapping_tasks_count_once_each() {
        assert_eq!(judged("b01 e01 b00 e00 b02 e02 b10 e10 b11 e11 b12 e12"), verdict(1, 0, 0));
        assert_eq!(judged("b00 b01 e00 e01 b02 e02 b10 e10 b11 e11 b12 e12"), verdict(1, 0, 0));
        assert_eq!(judged("b02 e02 b01 e01 b00 e00 b10 e10 b11 e11 b12 e12"), verdict(2, 0, 0));
    }

    #[test]
    fn a_task_that_comes_back_before_its_successors_is_in_order() {
        assert_eq!(judged("b00 e00 b00 e00 b01 e01 b02 e02"), verdict(0, 1, 3));
    }

    #[test]
    fn marks_of_no_task_are_refused() {
        assert_eq!(judge(2, 3, &[12]), None);
    }
}
