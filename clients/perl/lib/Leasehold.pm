package Leasehold;

# The distribution's front door: loads what a program needs.
#
# In:    nothing. Out: Leasehold::LockManager and Leasehold::Error.
# Never: starts anything.

use strict;
use warnings;

use Leasehold::Error;
use Leasehold::LockManager;

our $VERSION = '0.2.0';

1;

__END__

=encoding utf8

=head1 NAME

Leasehold - locks and leases that say when they are lost

=head1 SYNOPSIS

    use Leasehold;

    my $manager = Leasehold::LockManager->new(url => 'http://locks:4080');
    my $claim   = $manager->claim(resource => 'db/main', timeout => 60);
    # ... work ...
    $claim->release;

=head1 DESCRIPTION

The Perl client of Leasehold, a lock service. Core modules only, for Perl 5.16 and later, on Linux. It needs the
C<leasehold> command in the C<PATH>, or in C<LEASEHOLD_BIN>.

=over

=item L<Leasehold::LockManager>

Makes claims.

=item L<Leasehold::Claim>

One claim: its token, whether it holds, its release.

=item L<Leasehold::Error>

All exceptions.

=item L<Leasehold::ResourceLock>

C<lock_resource> and C<unlock_resource> for programs that lock by name.

=back

=head1 LICENSE

MIT or Apache-2.0.

=cut
