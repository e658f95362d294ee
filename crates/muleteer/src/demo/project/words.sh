# words TEXT: how many words a text has.
words() {
  set -f
  set -- $1
  set +f
  echo $#
}
