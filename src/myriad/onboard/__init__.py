"""The first description of a site: of machines over ssh (`myriad init`), or of a cluster that runs (`myriad adopt`)."""
