"""Ray: thin actors over pipeline classes, and their supervision."""

import os

# Ray reads it as it is imported, and prints such lines into standard output. Dead actors are raygam's business: the
# supervisor ends and replaces them, says so in its log and counts it; the run tells what stands in its way.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed while executing a task")
