package Leasehold::ResourceLock;

# Locks by name for a whole process, with the calls of Genome::Sys::Lock.
#
# In:    names of resources. Out: locks that last until they are unlocked or the process ends.
# Never: holds a lock in a process that did not take it.

use strict;
use warnings;

use Exporter qw(import);
use Scalar::Util qw(blessed);

use Leasehold::Error;
use Leasehold::LockManager;
use Leasehold::Process;

our $VERSION   = '0.2.0';
our @EXPORT_OK = qw(lock_resource unlock_resource exit_cleanup);

# Genome::Sys::Lock tries this often, with pauses of so many seconds.
my $MAX_TRY_DEFAULT     = 7200;
my $BLOCK_SLEEP_DEFAULT = 10;

my %SETTING;       # parameters of the manager
my $MANAGER;       # the only one of this process
my %CLAIMS;        # the claims that are held, by resource
my @ORDER;         # their resources, oldest first
my $OWNER = $$;    # the process that all of this belongs to

# Settings for the manager, before the first lock.
sub configure {
    my ( $class, %arg ) = @_;
    _settle();
    if ($MANAGER) {
        Leasehold::Error::Invalid->throw( message => 'configure must come before the first lock' );
    }
    %SETTING = %arg;
    return;
}

# Returns the resource, or undef if it was not free in time.
sub lock_resource {
    my %arg = _named(@_);
    return Leasehold::Process::undisturbed( sub { return _lock( \%arg ) } );
}

sub unlock_resource {
    my %arg = _named(@_);
    return Leasehold::Process::undisturbed( sub { return _unlock( _resource( \%arg ) ) } );
}

# Releases everything, newest first. The first failure is thrown when all is done.
sub exit_cleanup {
    return Leasehold::Process::undisturbed( \&_unlock_all );
}

sub _lock {
    my ($arg) = @_;
    _settle();
    my $resource = _resource($arg);
    my %claim    = ( resource => $resource, _timeout($arg) );
    for my $name (qw(ttl data max_hold lead on_lost)) {
        $claim{$name} = delete $arg->{$name} if exists $arg->{$name};
    }
    # For people who read the output of Genome::Sys::Lock; the server tells who holds what.
    delete $arg->{wait_announce_interval};
    _refuse_unknown($arg);
    my $claim = eval { _manager()->claim(%claim) };
    if ( !$claim ) {
        my $error = $@;
        return if blessed $error && $error->isa('Leasehold::Error::NotAcquired');
        die $error;
    }
    # One that was lost may still be here.
    @ORDER = grep { $_ ne $resource } @ORDER;
    push @ORDER, $resource;
    $CLAIMS{$resource} = $claim;
    return $resource;
}

sub _unlock {
    my ($resource) = @_;
    _settle();
    my $claim = delete $CLAIMS{$resource};
    if ( !$claim ) {
        Leasehold::Error::Ended->throw( message => "'$resource' is not locked by this process", resource => $resource );
    }
    @ORDER = grep { $_ ne $resource } @ORDER;
    return $claim->release;
}

sub _unlock_all {
    _settle();
    my @errors;
    while ( my $resource = pop @ORDER ) {
        my $claim = delete $CLAIMS{$resource};
        # What is lost was reported to on_lost.
        my $was_lost = $claim->is_lost;
        eval { $claim->release; 1 } or $was_lost or push @errors, $@;
    }
    my $manager = $MANAGER;
    undef $MANAGER;
    if ($manager) {
        eval { $manager->close; 1 } or push @errors, $@;
    }
    die $errors[0] if @errors;
    return 1;
}

# Both lock_resource(...) and Leasehold::ResourceLock->lock_resource(...); a name alone works, too.
sub _named {
    my @arg = @_;
    shift @arg if @arg && defined $arg[0] && $arg[0] eq __PACKAGE__;
    return @arg % 2 ? ( resource => @arg ) : @arg;
}

# Genome::Sys::Lock names a lock by its path, or by a directory and an id.
sub _resource {
    my ($arg) = @_;
    my ( $name, $lock, $directory, $id )
        = delete @{$arg}{qw(resource resource_lock lock_directory resource_id)};
    return $name                if defined $name;
    return $lock                if defined $lock;
    return "$directory/$id.lock" if defined $directory && defined $id;
    return Leasehold::Error::Invalid->throw(
        message => "'resource', 'resource_lock', or 'lock_directory' and 'resource_id' must be given" );
}

sub _timeout {
    my ($arg) = @_;
    my ( $timeout, $tries, $pause ) = delete @{$arg}{qw(timeout max_try block_sleep)};
    return ( timeout => $timeout ) if defined $timeout;
    return () if !defined $tries && !defined $pause;
    return ( timeout => ( defined $tries ? $tries : $MAX_TRY_DEFAULT ) * ( $pause || $BLOCK_SLEEP_DEFAULT ) );
}

sub _refuse_unknown {
    my ($arg) = @_;
    return if !%{$arg};
    my @names = sort keys %{$arg};
    return Leasehold::Error::Invalid->throw( message => "unknown: @names" );
}

# No default: two hosts that each lock on themselves would both believe that they hold the resource.
sub _manager {
    return $MANAGER if $MANAGER;
    my $addr = $ENV{LEASEHOLD_ADDR};
    if ( !defined $SETTING{url} && ( !defined $addr || $addr eq q{} ) ) {
        Leasehold::Error::Invalid->throw( message => 'LEASEHOLD_ADDR is not set: there is no server to lock with' );
    }
    $MANAGER = Leasehold::LockManager->new(%SETTING);
    return $MANAGER;
}

# A forked child starts with nothing. What it forgets here stays with its parent.
sub _settle {
    return if $OWNER == $$;
    undef $MANAGER;
    %CLAIMS = ();
    @ORDER  = ();
    $OWNER  = $$;
    return;
}

# Runs before the END block of Leasehold::LockManager, which is loaded earlier.
END {
    my ( $manager, $error ) = ($MANAGER);
    {
        local ( $@, $! );
        local $SIG{__DIE__};
        eval { _unlock_all(); 1 } or $error = $@;
    }
    $manager->destroy_failed($error) if defined $error && $manager;
}

1;

__END__

=encoding utf8

=head1 NAME

Leasehold::ResourceLock - lock_resource and unlock_resource on a Leasehold server

=head1 SYNOPSIS

    use Leasehold::ResourceLock qw(lock_resource unlock_resource);

    # LEASEHOLD_ADDR=http://locks:4080
    my $lock = lock_resource(resource_lock => 'model/2891', max_try => 5, block_sleep => 60)
        or die 'somebody else builds this model';
    # ... work ...
    unlock_resource(resource_lock => $lock);

=head1 DESCRIPTION

For programs that lock through C<Genome::Sys::Lock>, or in its way: a lock has a name, and belongs to the whole process.
There is one L<Leasehold::LockManager> per process; it is started at the first lock, on the server that C<LEASEHOLD_ADDR>
names. If there is none, that is an exception: no lock is ever taken on a server that nobody chose.

At the end of the program everything is released, newest first, in an C<END> block: END blocks of your program and of
modules that were loaded later still hold their locks. A program that is killed holds nothing any more at once; no
handler for C<SIGINT> or C<SIGTERM> is needed.

In a forked child nothing is locked. It may lock for itself; its parent's locks stay where they are.

C<examples/migrate-symlink-locks> of this distribution takes a symlink lock and this one side by side.

=head1 FUNCTIONS

All may be called as class methods, too.

=head2 lock_resource

    my $lock = lock_resource($resource);
    my $lock = lock_resource(resource => $resource, timeout => 60);
    my $lock = lock_resource(resource_lock => $path, max_try => 10, block_sleep => 60);
    my $lock = lock_resource(lock_directory => $directory, resource_id => $id);

Waits for the lock. Returns the name of the resource, or C<undef> if it was not free in time. Everything else that goes
wrong is thrown as a L<Leasehold::Error>; to lock twice is C<AlreadyClaimed>.

It waits C<timeout> seconds, or C<max_try> (7200) times C<block_sleep> (10) seconds if one of these is given; else as long
as the manager's C<timeout> says, which is for ever. C<ttl>, C<data>, C<max_hold>, C<lead> and C<on_lost> are those of
L<Leasehold::LockManager/claim>. C<wait_announce_interval> is ignored.

=head2 unlock_resource

    unlock_resource(resource_lock => $lock);

Releases it. Throws C<Leasehold::Error::Ended> if it is not locked by this process, and C<Leasehold::Error::Lost> if it was
lost.

=head2 exit_cleanup

Releases everything, newest first, and ends the keychain. The end of the program does so by itself.

=head2 configure

    Leasehold::ResourceLock->configure(url => $ENV{GENOME_LOCK_SERVER}, ttl => 120);

Parameters for L<Leasehold::LockManager/new>, before the first lock.

=head1 SEE ALSO

L<Leasehold::LockManager>, L<Leasehold::Error>

=cut
