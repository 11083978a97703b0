"""One read model of a run (`model`, read by `read`) and all that is drawn from it: screens, JSON, HTML report."""
