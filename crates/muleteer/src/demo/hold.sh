# hold WHO GATE: goes on when the demo opens that gate. So what the demo does in between meets an agent in
# the middle of its work on any machine, however fast or slow: nothing here is a matter of luck.
# (The scenario's step has a time limit, for the day on which nobody opens any gate any more.)
: > "$DEMO/gates/$1.$2"
until [ -e "$DEMO/gates/$2" ]; do sleep 0.05 2>/dev/null || sleep 1; done
