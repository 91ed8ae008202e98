"""`python -m deployer`: the same as `ddtree-deploy`, by whichever Python runs it."""

from deployer.cli.app import main

main()
