#!/usr/bin/env bash
# The first hour with hloom, command by command, on examples/flax_train.py.
#
#     bash examples/first_hour.sh [FOLDER]          (a few minutes on a CPU; what is dumped goes to FOLDER)
#
# Each command is one to type by hand; take your own program in the place of the example's.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$(mktemp -d)}
program=$here/flax_train.py

step() { printf '\n\033[1m# %s\033[0m\n' "$*"; }

step "1. The program as it is."
python "$program"

step "2. Does it fit this device? Where it does, nothing changes, and the line says so, with the limit."
JAX_HLOOM=fit JAX_HLOOM_MODULES=jit_train_step python "$program"

step "3. In 60 % of its temporaries. The losses are the same."
JAX_HLOOM='fit{budget=60%}' JAX_HLOOM_MODULES=jit_train_step HLOOM_DUMP_TO="$folder" python "$program"
dump=$folder/jit_train_step-0

step "4. What did it do, whose is the memory, what does it cost? \`hloom report\` writes it as a page."
hloom show "$dump" report

step "5. What would other budgets cost on an H100? Nothing is compiled; without --budget it has ten."
hloom show "$dump" budgets --target h100_sxm --budget 50% --budget min

step "6. Are the results the same? The step runs again with hloom on and off."
hloom replay "$dump"

step "7. A mistake is an error before anything compiles, with its place and what was meant."
! JAX_HLOOM='fit{budgt=60GiB}' python "$program" 2>&1 | grep SpecError

step "8. The passes, a line each. \`hloom passes fit\` tells all about one."
hloom passes
