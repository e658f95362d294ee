//! The rows about conversations.

use super::measure::Judged;
use super::row::Row;
use super::rows::threads;

pub const ROWS: &[Row] = &[
    Row {
        name: "message_accepted",
        what: "a message to a thread whose agent is busy, until it is durable and acknowledged",
        floor: "a write of as many bytes, and fdatasync",
        judged: Judged::Ratio,
        gate: None,
        ambition: None,
        run: threads::accepted,
    },
    Row {
        name: "message_stdin",
        what: "`thread send` to an idle agent until the message is in its stdin, with the agent's \
            start",
        floor: "`muleteer --version`",
        judged: Judged::Ratio,
        gate: None,
        ambition: None,
        run: threads::to_stdin,
    },
    Row {
        name: "answer_stdin",
        what: "`answer` to a question of a living agent until the answer is in its stdin",
        floor: "`muleteer --version`",
        judged: Judged::Ratio,
        gate: None,
        ambition: None,
        run: threads::answered,
    },
    Row {
        name: "chat_start",
        what: "`muleteer chat` with an empty pipe, from exec to exit",
        floor: "`muleteer --version`",
        judged: Judged::Ratio,
        gate: None,
        ambition: None,
        run: threads::chat,
    },
    Row {
        name: "threads_start",
        what: "a daemon's start beside 10,000 threads with a million messages, until it answers",
        floor: "",
        judged: Judged::Absolute("ms"),
        gate: None,
        ambition: None,
        run: threads::start,
    },
    Row {
        name: "threads_memory",
        what: "the memory of a daemon there, after an answer",
        floor: "",
        judged: Judged::Absolute("MB"),
        gate: None,
        ambition: None,
        run: threads::memory,
    },
    Row {
        name: "threads_snapshot",
        what: "the snapshot of the events there",
        floor: "",
        judged: Judged::Absolute("MB"),
        gate: None,
        ambition: None,
        run: threads::snapshot,
    },
    Row {
        name: "threads_list",
        what: "`muleteer thread list` there",
        floor: "`muleteer --version`",
        judged: Judged::Ratio,
        gate: None,
        ambition: None,
        run: threads::list,
    },
    Row {
        name: "threads_show_new",
        what: "`muleteer thread show` of the newest thread there",
        floor: "`muleteer --version`",
        judged: Judged::Ratio,
        gate: None,
        ambition: None,
        run: threads::show_new,
    },
    Row {
        name: "threads_show_old",
        what: "`muleteer thread show` of the oldest thread there",
        floor: "`muleteer --version`",
        judged: Judged::Ratio,
        gate: None,
        ambition: None,
        run: threads::show_old,
    },
];
